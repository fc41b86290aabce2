package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// fromJSON writes JSON as msgpack, keys in their order. A string that begins with "hex:" is bytes, one with "raw:" is msgpack as it is.
func fromJSON(t testing.TB, text string) []byte {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	out, err := appendValue(nil, dec)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

func appendValue(b []byte, dec *json.Decoder) ([]byte, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch v := tok.(type) {
	case json.Delim:
		return appendMany(b, dec, v == '{')
	case string:
		return appendText(b, v)
	case json.Number:
		return appendNumber(b, v)
	case bool:
		return msgp.AppendBool(b, v), nil
	default:
		return msgp.AppendNil(b), nil
	}
}

func appendMany(b []byte, dec *json.Decoder, isMap bool) ([]byte, error) {
	var inside []byte
	n, err := uint32(0), error(nil)
	for ; dec.More(); n++ {
		if inside, err = appendValue(inside, dec); err != nil {
			return nil, err
		}
	}
	if isMap {
		b = msgp.AppendMapHeader(b, n/2)
	} else {
		b = msgp.AppendArrayHeader(b, n)
	}
	_, err = dec.Token()
	return append(b, inside...), err
}

func appendText(b []byte, v string) ([]byte, error) {
	if h, ok := strings.CutPrefix(v, "hex:"); ok {
		raw, err := hex.DecodeString(h)
		return msgp.AppendBytes(b, raw), err
	}
	if h, ok := strings.CutPrefix(v, "raw:"); ok {
		raw, err := hex.DecodeString(h)
		return append(b, raw...), err
	}
	return msgp.AppendString(b, v), nil
}

func appendNumber(b []byte, v json.Number) ([]byte, error) {
	if !bytes.ContainsAny([]byte(v), ".e") {
		if n, err := v.Int64(); err == nil {
			return msgp.AppendInt64(b, n), nil
		}
		var u uint64
		if err := json.Unmarshal([]byte(v), &u); err != nil {
			return nil, err
		}
		return msgp.AppendUint64(b, u), nil
	}
	f, err := v.Float64()
	return msgp.AppendFloat64(b, f), err
}
