package interp

import "github.com/bifrost-rack/bifrost/p4/v1model"

// maxStates bounds how many states a parser passes through: what loops longer
// than the packet is long makes no progress.
const maxStates = 1 << 12

// codes are the core errors' codes in this program.
type codes struct {
	none, packetTooShort, stackOutOfBounds, headerTooShort, timeout, invalidArgument uint64
}

func newCodes(p *v1model.Program) codes {
	code := func(name string) uint64 {
		n, _ := p.ErrorCode(name)
		return uint64(n)
	}
	return codes{
		none:             code(v1model.ErrorNone),
		packetTooShort:   code(v1model.ErrorPacketTooShort),
		stackOutOfBounds: code(v1model.ErrorStackBounds),
		headerTooShort:   code(v1model.ErrorHeaderTooShort),
		timeout:          code(v1model.ErrorParserTimeout),
		invalidArgument:  code(v1model.ErrorInvalidArgument),
	}
}

// parser runs a program's parser.
type parser struct {
	start     *parserState
	codes     codes
	checksums []checksum
}

type parserState struct {
	name   string
	steps  []step
	choose func(*state) *parserState // nil if there is no choice
	next   *parserState              // nil accepts
}

func (c *compiler) parser() *parser {
	p := &parser{codes: c.codes}
	states := make([]*parserState, len(c.prog.Parser.States))
	for i, st := range c.prog.Parser.States {
		states[i] = &parserState{name: st.Name}
	}
	for i, st := range c.prog.Parser.States {
		for _, s := range st.Body {
			states[i].steps = append(states[i].steps, c.stmt(s))
		}
		if st.Default != nil {
			states[i].next = states[st.Default.Index]
		}
		if len(st.Cases) > 0 {
			states[i].choose = c.choice(st, states)
		}
	}
	if st := c.prog.Parser.Start; st != nil {
		p.start = states[st.Index]
	}
	for _, sum := range c.prog.Checksums {
		if sum.Verify {
			p.checksums = append(p.checksums, c.checksum(sum))
		}
	}
	return p
}

// run parses the packet from its start; an error ends it there.
func (p *parser) run(s *state) {
	s.failed, s.code, s.badChecksum = false, p.codes.none, false
	s.pos = 0
	n := 0
	for st := p.start; st != nil && !s.failed; n++ {
		if n == maxStates {
			s.fail(p.codes.timeout)
			break
		}
		if s.tr != nil {
			s.tr.parser(st.name)
		}
		st = st.run(s)
	}
	for i := range p.checksums {
		if !p.checksums[i].verify(s) {
			s.badChecksum = true
		}
	}
}

func (st *parserState) run(s *state) *parserState {
	for _, f := range st.steps {
		f(s)
		if s.failed {
			return nil
		}
	}
	if st.choose != nil {
		return st.choose(s)
	}
	return st.next
}

func (c *compiler) verify(st v1model.Verify) step {
	cond, code := c.cond(st.Cond), c.count(st.Code)
	return func(s *state) {
		if !cond(s) {
			s.fail(code(s))
		}
	}
}

func (c *compiler) advance(st v1model.Advance) step {
	bits := c.count(st.Bits)
	invalid, tooShort := c.codes.invalidArgument, c.codes.packetTooShort
	return func(s *state) {
		n := bits(s)
		switch {
		case n%8 != 0:
			s.fail(invalid)
		case n/8 > uint64(len(s.frame)-s.pos):
			s.fail(tooShort)
		default:
			s.pos += int(n / 8)
		}
	}
}
