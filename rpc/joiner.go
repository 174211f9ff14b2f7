package rpc

import (
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
)

// defaultJoiner asks the compute daemon of the blade that the program runs on.
func defaultJoiner() join.Joiner { return unixjoin.Joiner{} }
