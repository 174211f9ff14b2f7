//go:build !race

package dsmclient_test

const racing = false
