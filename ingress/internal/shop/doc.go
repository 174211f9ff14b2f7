// Package shop is a service for tests of the ingress.
package shop

//go:generate thrift -nowarn -out gen-go --gen go:skip_remote shop.thrift
//go:generate go run github.com/bifrost-rack/bifrost/cmd/bifrost gen shop.thrift --out gen-go
//go:generate gofmt -w gen-go
