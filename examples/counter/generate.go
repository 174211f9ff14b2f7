package main

//go:generate thrift -nowarn -out gen-go --gen go:skip_remote counter.thrift
//go:generate go run github.com/bifrost-rack/bifrost/cmd/bifrost gen counter.thrift --out gen-go
//go:generate gofmt -w gen-go
