// Package crosstest checks that Thrift's types and calls are over Bifröst what
// they are over plain TCP: one handler and one client, both as the unmodified
// compiler generates them, on both networks.
package crosstest

//go:generate thrift -nowarn -out gen-go --gen go:skip_remote crosstest.thrift
//go:generate gofmt -w gen-go
