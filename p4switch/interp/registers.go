package interp

import (
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// Registers is the memory of a program's registers. Executors that were given the same one (Config.Registers) share what is there, also while
// several of them run: each action is atomic, whichever executes it.
type Registers struct {
	defs   []*v1model.Register
	arrays []*cells
	owner  any
}

// cells are those of a register array. An action that touches the register holds mu until it
// ends, and so reads and writes atomically. Memory is taken where it was written, unless it was given.
type cells struct {
	size  int
	n     int        // words of a cell
	of    *Registers // whoever has the cells keeps the owner of their memory
	mu    sync.Mutex
	pages [][]uint64 // of pageCells cells each; nil where nothing was written; made with the first
	zero  []uint64   // a cell of them
}

// pageCells is how many cells get memory at a time.
const pageCells = 256

// RegisterWords is how many words of memory the registers of a program take.
func RegisterWords(prog *v1model.Program) (n int) {
	for _, r := range prog.Registers {
		n += r.Size * wordsFor(r.Width)
	}
	return n
}

// NewRegisters makes the registers of a program. They lie in memory, of RegisterWords words, which nothing else uses and owner keeps alive.
// Without memory they take it where they are written.
func NewRegisters(prog *v1model.Program, memory []uint64, owner any) *Registers {
	r := &Registers{defs: prog.Registers, owner: owner}
	for _, def := range prog.Registers {
		n := wordsFor(def.Width)
		c := &cells{size: def.Size, n: n, of: r, zero: make([]uint64, n)}
		if memory != nil {
			c.pages = pagesOf(memory[:def.Size*n], pageCells*n)
			memory = memory[def.Size*n:]
		}
		r.arrays = append(r.arrays, c)
	}
	return r
}

// pagesOf cuts memory into pages.
func pagesOf(memory []uint64, words int) (pages [][]uint64) {
	for ; len(memory) > words; memory = memory[words:] {
		pages = append(pages, memory[:words:words])
	}
	return append(pages, memory)
}

// Of reports whether these are registers of a program: whether it has the same ones. Nil is no program's.
func (r *Registers) Of(prog *v1model.Program) bool {
	return r != nil && v1model.SameRegisters(r.defs, prog.Registers)
}

// Owner is what keeps the memory alive that was given.
func (r *Registers) Owner() any { return r.owner }

// Registers returns those of the executor.
func (x *Executor) Registers() *Registers { return x.c.memory }

// cell is a cell's words, which are only read, or nil if there is no such cell.
func (c *cells) cell(i uint64) []uint64 {
	switch {
	case i >= uint64(c.size):
		return nil
	case c.pages == nil || c.pages[i/pageCells] == nil:
		return c.zero
	}
	return c.pages[i/pageCells][int(i%pageCells)*c.n:][:c.n]
}

// toWrite is a cell's words, or nil if there is no such cell.
func (c *cells) toWrite(i uint64) []uint64 {
	if i >= uint64(c.size) {
		return nil
	}
	if c.pages == nil {
		c.pages = make([][]uint64, (c.size+pageCells-1)/pageCells)
	}
	if c.pages[i/pageCells] == nil {
		c.pages[i/pageCells] = make([]uint64, c.n*min(pageCells, c.size))
	}
	return c.cell(i)
}
