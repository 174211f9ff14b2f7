package rpc

import (
	"context"

	"github.com/bifrost-rack/bifrost/internal/join"
)

// defaultJoiner asks the blade's compute daemon.
func defaultJoiner() join.Joiner { return noDaemon{} }

type noDaemon struct{}

func (noDaemon) Join(context.Context, string) (join.Session, error) {
	return nil, &Error{Code: Unavailable, Op: "join", Msg: "no compute daemon at " + join.SocketName}
}
