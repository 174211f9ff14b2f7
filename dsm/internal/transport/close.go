package transport

import "github.com/bifrost-rack/bifrost/internal/fault"

// Close ends all transfers with a status. Nothing is sent any more.
func (e *Endpoint) Close(status fault.Code) {
	for _, p := range e.active {
		p.each(func(r *request) {
			if t := r.transfer; t != nil {
				t.fail(r.off, status, true)
				r.transfer = nil
				t.open--
				e.conclude(p, t)
			}
		})
		for t := p.queue.first; t != nil; t = p.queue.first {
			t.fail(t.issued, status, true)
			p.queue.remove(t)
			e.conclude(p, t)
		}
	}
	e.wake = Never
}
