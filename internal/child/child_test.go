package child_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/internal/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStart: a process answers on its end of a stream, and it is told how it has ended.
func TestStart(t *testing.T) {
	ours, theirs, err := child.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	cmd := exec.Command("sh", "-c", "read line <&3; echo got $line >&3; exit 7")
	cmd.ExtraFiles = []*os.File{theirs}
	prepared, ended := false, make(chan error, 1)
	if err := errors.Join(child.Start(cmd, func() { prepared = true }, func(err error) { ended <- err }), theirs.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Write([]byte("a line\n")); err != nil {
		t.Error(err)
	}
	if line, err := bufio.NewReader(ours).ReadString('\n'); line != "got a line\n" || err != nil {
		t.Errorf("it answers %q, %v", line, err)
	}
	var exit *exec.ExitError
	if err := <-ended; !errors.As(err, &exit) || exit.ExitCode() != 7 || !prepared {
		t.Errorf("it has ended with %v; prepared: %v", err, prepared)
	}
}

// TestStart_Fails: a program that is not there does not start, and so does not end.
func TestStart_Fails(t *testing.T) {
	err := child.Start(exec.Command("/nowhere/program"), nil, func(error) { t.Error("it has ended") })
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
