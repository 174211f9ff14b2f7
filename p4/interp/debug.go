package interp

import (
	"math/big"
	"strings"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// assert compiles an assertion. bmv2 aborts if one fails; here the packet is
// lost, and the log says why.
func (c *compiler) assert(st v1model.Assert) step {
	cond := c.cond(st.Cond)
	return func(s *state) {
		if !cond(s) {
			s.asserted, s.exit = true, true
			c.log.Error("assertion failed, packet dropped", "assertion", st.Text)
		}
	}
}

func (c *compiler) logMessage(st v1model.Log) step {
	var args []bigNum
	for _, a := range st.Args {
		args = append(args, c.big(a))
	}
	pieces := logPieces(st.Format)
	return func(s *state) {
		c.log.Info(formatLog(s, pieces, args))
	}
}

// logPieces splits a format at its {}; \{ and \} stand for themselves.
func logPieces(format string) []string {
	var pieces []string
	var piece strings.Builder
	for i := 0; i < len(format); i++ {
		switch rest := format[i:]; {
		case strings.HasPrefix(rest, `\{`), strings.HasPrefix(rest, `\}`):
			i++
			piece.WriteByte(format[i])
		case rest[0] == '{' && strings.Contains(rest, "}"):
			i += strings.Index(rest, "}")
			pieces = append(pieces, piece.String())
			piece.Reset()
		default:
			piece.WriteByte(format[i])
		}
	}
	return append(pieces, piece.String())
}

// formatLog puts arguments between a message's pieces; without enough of
// either the message is still readable.
func formatLog(s *state, pieces []string, args []bigNum) string {
	var b strings.Builder
	for i, p := range pieces {
		b.WriteString(p)
		switch {
		case i == len(pieces)-1:
		case i < len(args):
			var z big.Int
			args[i](s, &z)
			b.WriteString(z.String())
		default:
			b.WriteString("{}")
		}
	}
	return b.String()
}
