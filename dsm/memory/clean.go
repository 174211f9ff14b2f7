package memory

import "context"

// cleanPart is how many bytes are zeroed at a time: some 100 µs, for which
// requests wait.
const cleanPart = 1 << 20

// clean zeroes freed memory in the background until ctx ends.
func (s *Server) clean(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dirty:
		}
		for ctx.Err() == nil && s.cleanSome() {
		}
	}
}

// cleanSome cleans one part; true means that there is more.
func (s *Server) cleanSome() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.Clean(cleanPart)
	return s.store.Dirty()
}

// resume lets commands go on that have waited, if the store takes them again.
func (s *Server) resume() {
	if s.calm != nil && (s.store == nil || !s.store.Withholds()) {
		close(s.calm)
		s.calm = nil
	}
}

// unlock unlocks s.mu after something that may have freed memory, or ended the filling of
// a copy.
func (s *Server) unlock() {
	s.resume()
	if s.store != nil && s.store.Dirty() {
		select {
		case s.dirty <- struct{}{}:
		default:
		}
	}
	s.mu.Unlock()
}
