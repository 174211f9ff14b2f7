package main

//go:generate thrift -nowarn -out gen-go --gen go:skip_remote pipeline.thrift
//go:generate go run github.com/bifrost-rack/bifrost/cmd/bifrost gen pipeline.thrift --out gen-go
//go:generate gofmt -w gen-go
