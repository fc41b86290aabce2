// Package kvindexerpb is the part of SGLang's kv_indexer.v1 that a router uses, as generated code. It promises the bytes that
// kv_indexer.proto describes; nothing here is written by hand.
package kvindexerpb

//go:generate go -C ../../../../../tools run ./protogen internal/gateway/prefix/remote/kvindexerpb/kv_indexer.proto
