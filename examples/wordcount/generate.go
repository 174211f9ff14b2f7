package main

//go:generate thrift -nowarn -out gen-go --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/,skip_remote wordcount.thrift
//go:generate go run github.com/bifrost-rack/bifrost/cmd/bifrost gen wordcount.thrift --package-prefix github.com/bifrost-rack/bifrost/rpc/idl/ --out gen-go
//go:generate gofmt -w gen-go
