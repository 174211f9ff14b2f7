package main

//go:generate thrift -nowarn -out gen-go --gen go:skip_remote feed.thrift
//go:generate go run github.com/bifrost-rack/bifrost/cmd/bifrost gen feed.thrift --out gen-go
//go:generate gofmt -w gen-go
