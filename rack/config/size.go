package config

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// units in the order that FormatSize tries them.
var units = []struct {
	suffix string
	bytes  uint64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// ParseSize reads a whole number of bytes with an optional binary unit: 4096,
// 64KiB, 512MiB, 1GiB, 1TiB. Decimal units are refused rather than guessed at.
func ParseSize(s string) (uint64, error) {
	digits, factor := s, uint64(1)
	for _, u := range units {
		if number, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, factor = strings.TrimSpace(number), u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size", s)
	}
	high, low := bits.Mul64(n, factor)
	if high != 0 {
		return 0, fmt.Errorf("%q is more than 64 bits can count", s)
	}
	return low, nil
}

// FormatSize writes a size in the largest unit that divides it.
func FormatSize(n uint64) string {
	for _, u := range units {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatUint(n/u.bytes, 10) + u.suffix
		}
	}
	return "0B"
}
