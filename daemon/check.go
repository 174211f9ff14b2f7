package daemon

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// Check implements Runner: the program's file is there, has the content that is wanted, may be executed, and is for this machine.
func (e Exec) Check(s control.Start) error {
	path, err := e.find(&s)
	if err == nil {
		path, err = exec.LookPath(path)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the file %s may not be executed: chmod +x %s", s.Args[0], s.Args[0])
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("there is no program %s", s.Args[0])
	case err != nil:
		return err
	}
	return executable(path)
}

// executable says why this machine cannot execute a file, nil if nothing is known against it.
func executable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil //nolint:nilerr // who may not read it may execute it all the same
	}
	defer f.Close()
	head := make([]byte, 256)
	n, _ := f.ReadAt(head, 0) // a file that is shorter is no program either
	if line, ok := bytes.CutPrefix(head[:n], []byte("#!")); ok {
		line, _, _ = bytes.Cut(line, []byte("\n"))
		if words := strings.Fields(string(line)); len(words) > 0 {
			if _, err := exec.LookPath(words[0]); err != nil {
				return fmt.Errorf("the script %s wants %s, which is not there", path, words[0])
			}
		}
		return nil
	}
	if runtime.GOOS != "linux" {
		return nil
	}
	if !bytes.HasPrefix(head[:n], []byte(elf.ELFMAG)) {
		return fmt.Errorf("the file %s is no program: it is not in the format ELF, and has no line #! at its beginning", path)
	}
	file, err := elf.NewFile(f)
	if err != nil {
		return fmt.Errorf("the file %s is damaged: %w", path, err)
	}
	if ours := machines[runtime.GOARCH]; len(ours) > 0 && !slices.Contains(ours, file.Machine) {
		return fmt.Errorf("the program %s is for another processor (%s), and this blade is %s: build it with GOARCH=%s", path, strings.TrimPrefix(file.Machine.String(), "EM_"), runtime.GOARCH, runtime.GOARCH)
	}
	return nil
}

// machines are the processors whose programs a machine executes, by what Go calls it.
var machines = map[string][]elf.Machine{
	"amd64": {elf.EM_X86_64, elf.EM_386}, "arm64": {elf.EM_AARCH64, elf.EM_ARM},
	"riscv64": {elf.EM_RISCV}, "ppc64le": {elf.EM_PPC64}, "s390x": {elf.EM_S390},
}
