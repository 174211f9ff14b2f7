//go:build race

package dsm_test

// racing says that the race detector makes every byte that moves cost ten times
// as much.
const racing = true
