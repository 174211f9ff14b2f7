package v1model

import (
	"math/big"
	"strings"
)

// Text is the message with its arguments' values; without enough of either it is
// still readable.
func (l Log) Text(args []*big.Int) string {
	var b strings.Builder
	pieces := logPieces(l.Format)
	for i, p := range pieces {
		b.WriteString(p)
		switch {
		case i == len(pieces)-1:
		case i < len(args):
			b.WriteString(args[i].String())
		default:
			b.WriteString("{}")
		}
	}
	return b.String()
}

// logPieces splits a format at its {}; \{ and \} stand for themselves.
func logPieces(format string) []string {
	var pieces []string
	var piece strings.Builder
	for i := 0; i < len(format); i++ {
		switch rest := format[i:]; {
		case strings.HasPrefix(rest, `\{`), strings.HasPrefix(rest, `\}`):
			i++
			piece.WriteByte(format[i])
		case rest[0] == '{' && strings.Contains(rest, "}"):
			i += strings.Index(rest, "}")
			pieces = append(pieces, piece.String())
			piece.Reset()
		default:
			piece.WriteByte(format[i])
		}
	}
	return append(pieces, piece.String())
}
