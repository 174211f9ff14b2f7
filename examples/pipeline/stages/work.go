package stages

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/bifrost-rack/bifrost/examples/pipeline/gen-go/pipeline"
)

// works is what each stage does; nil output means that the input is right as it is.
var works = map[string]func([]byte) ([]byte, error){"Clean": clean, "Sort": sortLines, "Count": count, "Rank": rank}

// clean drops carriage returns. It refuses what is no text.
func clean(text []byte) ([]byte, error) {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			return nil, &pipeline.BadText{Stage: "Clean", Offset: int64(i), Why: "no UTF-8"}
		}
		i += n
	}
	if !bytes.ContainsRune(text, '\r') {
		return nil, nil
	}
	return bytes.ReplaceAll(text, []byte("\r"), []byte{}), nil
}

// lines cuts a text into lines without their ends; a text that is empty has none.
func lines(text []byte) [][]byte {
	text = bytes.TrimSuffix(text, []byte("\n"))
	if len(text) == 0 {
		return nil
	}
	return bytes.Split(text, []byte("\n"))
}

func join(list [][]byte) []byte {
	var out []byte
	for _, line := range list {
		out = append(append(out, line...), '\n')
	}
	return append([]byte{}, out...)
}

// sortLines sorts the lines by their bytes.
func sortLines(text []byte) ([]byte, error) {
	list := lines(text)
	slices.SortFunc(list, bytes.Compare)
	return join(list), nil
}

// count puts in front of each line how often it stands there in a row.
func count(text []byte) ([]byte, error) {
	var out [][]byte
	list := lines(text)
	for len(list) > 0 {
		n := 1
		for n < len(list) && bytes.Equal(list[n], list[0]) {
			n++
		}
		out = append(out, fmt.Appendf(nil, "%d %s", n, list[0]))
		list = list[n:]
	}
	return join(out), nil
}

// rank sorts by the number in front, the largest first.
func rank(text []byte) ([]byte, error) {
	list := lines(text)
	for _, line := range list {
		if _, err := number(line); err != nil {
			return nil, &pipeline.BadText{Stage: "Rank", Why: err.Error()}
		}
	}
	slices.SortStableFunc(list, func(a, b []byte) int {
		x, _ := number(a)
		y, _ := number(b)
		return y - x
	})
	return join(list), nil
}

func number(line []byte) (int, error) {
	digits, _, _ := bytes.Cut(line, []byte(" "))
	return strconv.Atoi(string(digits))
}
