package ingress

//go:generate thrift -nowarn -out gen-go --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/,skip_remote durable.thrift
//go:generate gofmt -w gen-go
