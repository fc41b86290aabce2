// Package bucket turns a request's length into engines: a [Resolver] orders a model's buckets by capacity, a [Bucket] picks
// a whole selection (one plain engine, or a prefill and a decode engine that are both its own) and a [Group] owns a role's
// membership and policy.
//
// No pick leaves its bucket, group or candidate set: a group checks that its policy's answer is one of the very workers it
// was given, and half a pair is never kept. [Resolver.Select] is the bucket loop; it is the same code in production, in
// replay and in tests.
//
// The package is pure. Everything in it may be called at once from any goroutine.
package bucket
