package interp

import (
	"fmt"
	"math/big"
	"sync"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// register is a register array. An action that touches it holds mu until it
// ends, and so reads and writes atomically.
type register struct {
	def   *v1model.Register
	n     int // words of a cell
	mu    sync.Mutex
	cells []uint64
}

func newRegister(def *v1model.Register) *register {
	n := wordsFor(def.Width)
	return &register{def: def, n: n, cells: make([]uint64, n*def.Size)}
}

// cell is a cell's words, or nil if there is no such cell.
func (r *register) cell(i uint64) []uint64 {
	if i >= uint64(r.def.Size) {
		return nil
	}
	return r.cells[int(i)*r.n:][:r.n]
}

// readRegister compiles a read; one beyond the array leaves the field alone.
func (c *compiler) readRegister(st v1model.ReadRegister) step {
	r, index := c.registers[st.Register.Index], c.count(st.Index)
	if r.n == 1 {
		set := c.assignUint(st.Dst)
		return func(s *state) {
			if cell := r.cell(index(s)); cell != nil {
				set(s, cell[0])
			}
		}
	}
	find, _, sl, _ := c.place(st.Dst)
	return func(s *state) {
		cell, at := r.cell(index(s)), find(s)
		if cell == nil || at < 0 {
			return
		}
		var z big.Int
		getBig(&z, cell)
		putBig(s.w[at:at+sl.n], &z, sl.width)
	}
}

// writeRegister compiles a write; one beyond the array is lost.
func (c *compiler) writeRegister(st v1model.WriteRegister) step {
	r, index := c.registers[st.Register.Index], c.count(st.Index)
	if r.n == 1 {
		x, mask := c.num(st.Value), mask64(r.def.Width)
		return func(s *state) {
			if cell := r.cell(index(s)); cell != nil {
				cell[0] = x(s) & mask
			}
		}
	}
	x := c.big(st.Value)
	return func(s *state) {
		if cell := r.cell(index(s)); cell != nil {
			var z big.Int
			x(s, &z)
			putBig(cell, &z, r.def.Width)
		}
	}
}

// Register implements datapath.Datapath.
func (x *Executor) Register(name string, index int) ([]byte, error) {
	r, cell, err := x.registerCell(name, index)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return wordsToBytes(cell, r.def.Width), nil
}

// SetRegister implements datapath.Datapath.
func (x *Executor) SetRegister(name string, index int, v []byte) error {
	r, cell, err := x.registerCell(name, index)
	if err != nil {
		return err
	}
	f := fieldMatch{width: r.def.Width}
	w, err := f.words(v)
	if err != nil {
		return fmt.Errorf("register %q: %w", name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	copy(cell, w)
	return nil
}

func (x *Executor) registerCell(name string, index int) (*register, []uint64, error) {
	for _, r := range x.c.registers {
		if r.def.Name != name {
			continue
		}
		if index < 0 || index >= r.def.Size {
			return nil, nil, fmt.Errorf("register %q: cell %d of %d: %w", name, index, r.def.Size, datapath.ErrNotFound)
		}
		return r, r.cell(uint64(index)), nil
	}
	return nil, nil, fmt.Errorf("register %q: %w", name, datapath.ErrNotFound)
}
