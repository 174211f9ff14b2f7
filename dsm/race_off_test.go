//go:build !race

package dsm_test

const racing = false
