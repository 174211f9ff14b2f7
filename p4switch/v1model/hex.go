package v1model

import (
	"math/big"
	"strings"
)

// parseHex reads the format's hexstr: optional minus sign and 0x, then digits.
func parseHex(s string) (*big.Int, error) {
	digits, negative := strings.CutPrefix(s, "-")
	digits = strings.TrimPrefix(digits, "0x")
	if strings.Trim(digits, "0123456789abcdefABCDEF") != "" || digits == "" {
		return nil, malformed("%q is not a hexadecimal number", s)
	}
	if len(digits) > MaxFieldBits/4 {
		return nil, unsupported("constant of %d digits", len(digits))
	}
	v, _ := new(big.Int).SetString(digits, 16)
	if negative {
		v.Neg(v)
	}
	return v, nil
}

// parseBytes reads a hexstr that must fit n bytes, right-aligned.
func parseBytes(s string, n int) ([]byte, error) {
	v, err := parseHex(s)
	if err != nil {
		return nil, err
	}
	if v.Sign() < 0 || v.BitLen() > n*8 {
		return nil, malformed("%s does not fit %d bytes", s, n)
	}
	return v.FillBytes(make([]byte, n)), nil
}

// wrap is v's low bits, two's complement, right-aligned.
func wrap(v *big.Int, bits int) []byte {
	one := big.NewInt(1)
	mask := new(big.Int).Sub(new(big.Int).Lsh(one, uint(bits)), one)
	return mask.And(mask, v).FillBytes(make([]byte, (bits+7)/8))
}
