//go:build race

package dsmclient_test

// racing says that the race detector makes every byte that moves cost ten times
// as much.
const racing = true
