package interp

import (
	"math/big"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// assert compiles an assertion. bmv2 aborts if one fails; here the packet is
// lost, and the log says why.
func (c *compiler) assert(st v1model.Assert) step {
	cond := c.cond(st.Cond)
	return func(s *state) {
		if !cond(s) {
			s.lost, s.exit = assertionFailed, true
			c.log.Error("assertion failed, packet dropped", "assertion", st.Text)
		}
	}
}

func (c *compiler) logMessage(st v1model.Log) step {
	var args []bigNum
	for _, a := range st.Args {
		args = append(args, c.big(a))
	}
	return func(s *state) {
		values := make([]*big.Int, len(args))
		for i, a := range args {
			values[i] = new(big.Int)
			a(s, values[i])
		}
		c.log.Info(st.Text(values))
	}
}
