package words

import (
	"bytes"
	"errors"
	"io"
	"os"
	"unicode/utf8"
)

// reader cuts files into parts that end between words.
type reader struct {
	files  []string
	file   int   // the one that comes next
	offset int64 // and where in it
	part   int   // bytes of a part, unless a word is longer
}

// next returns so many parts, fewer at the end.
func (r *reader) next(count int) (parts [][]byte, err error) {
	for r.file < len(r.files) && len(parts) < count {
		part, err := r.cut(r.files[r.file])
		if err != nil {
			return nil, err
		}
		if len(part) == 0 {
			r.file, r.offset = r.file+1, 0
			continue
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// cut reads the next part of a file; none at its end. A word that is longer than a
// part is read whole.
func (r *reader) cut(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for size := r.part; ; size *= 2 {
		b := make([]byte, size)
		n, err := f.ReadAt(b, r.offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		b = b[:n]
		if err == nil {
			b = b[:wordEnd(b)]
		}
		if len(b) > 0 || err != nil {
			r.offset += int64(len(b))
			return b, nil
		}
	}
}

// wordEnd is the end of the last word that certainly ends in b, and of the one
// character behind it; 0 if there is none.
func wordEnd(b []byte) int {
	at := bytes.LastIndexFunc(b, func(r rune) bool { return r != utf8.RuneError && !inWord(r) })
	if at < 0 {
		return 0
	}
	_, n := utf8.DecodeRune(b[at:])
	return at + n
}
