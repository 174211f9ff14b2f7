package rawsys

import (
	"bytes"
	"syscall"
	"testing"
)

// pair are the ends of a pipe, in non-blocking mode.
func pair(t *testing.T) (r, w uintptr) {
	t.Helper()
	var fds [2]int
	if err := syscall.Pipe(fds[:]); err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		t.Cleanup(func() { _ = syscall.Close(fd) })
		if err := syscall.SetNonblock(fd, true); err != nil {
			t.Fatal(err)
		}
	}
	return uintptr(fds[0]), uintptr(fds[1])
}

func TestReadWrite(t *testing.T) {
	r, w := pair(t)
	buf := make([]byte, 16)
	if _, err := Read(r, buf); err != syscall.EAGAIN {
		t.Fatalf("read of nothing: %v", err)
	}
	if n, err := Write(w, []byte("hello")); n != 5 || err != 0 {
		t.Fatalf("write: %d, %v", n, err)
	}
	if n, err := Read(r, buf); err != 0 || !bytes.Equal(buf[:n], []byte("hello")) {
		t.Fatalf("read %q, %v", buf[:n], err)
	}
	if n, err := Write(w, nil); n != 0 || err != 0 {
		t.Errorf("write of nothing: %d, %v", n, err)
	}
	full := make([]byte, 1<<20)
	for range 2 { // the pipe is full after the first
		n, err := Write(w, full)
		if n == len(full) || err != 0 && err != syscall.EAGAIN {
			t.Fatalf("write of too much: %d, %v", n, err)
		}
	}
	if _, err := Read(^uintptr(0), buf); err != syscall.EBADF {
		t.Errorf("no descriptor: %v", err)
	}
}
