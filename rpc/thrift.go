package rpc

import "github.com/apache/thrift/lib/go/thrift"

// Thrift's generated servers start a goroutine and a ticker for every call, to see
// whether the caller's connection is still open. There are no connections here,
// and it would double the time of a short call, so importing this package turns
// it off. A program that also serves Thrift over TCP and wants handlers cancelled
// when their client disconnects sets the interval again in main; then every call
// pays for it.
func init() { thrift.ServerConnectivityCheckInterval = 0 }
