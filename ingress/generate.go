package ingress

//go:generate thrift -nowarn -out gen-go --gen go:skip_remote durable.thrift
//go:generate gofmt -w gen-go
