// Package indexpb is perigee.index.v1 as generated code: the messages of index.proto, a client and the service's interface. It promises what
// the .proto file says of each message; nothing here is written by hand.
package indexpb

//go:generate go -C ../../../../../tools run ./protogen internal/gateway/prefix/indexer/indexpb/index.proto
