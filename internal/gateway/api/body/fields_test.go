package body

import (
	"encoding/json"
	"errors"
	"testing"
)

// TestReadFields: what an object may have is found as it stands, and all else is refused by its class.
func TestReadFields(t *testing.T) {
	for _, c := range []struct {
		text, a, b string
		err        error
	}{
		{text: `{}`},
		{text: " { } \n"},
		{text: `{"a":1}`, a: `1`},
		{text: ` { "b" : [1, {"x":null}] , "a":"y" } `, a: `"y"`, b: `[1, {"x":null}]`},
		{text: `{"\u0061":null}`, a: `null`},
		{text: `{"a":1,"a":1}`, err: ErrDuplicateKey},
		{text: `{"a":1,"\u0061":1}`, err: ErrDuplicateKey},
		{text: `{"c":1`, err: ErrUnknownKey},
		{text: `{"A":1}`, err: ErrUnknownKey},
		{text: `{"":1}`, err: ErrUnknownKey},
		{text: `[]`, err: ErrNotObject},
		{text: `null`, err: ErrNotObject},
		{text: `"a" `, err: ErrNotObject},
		{text: ``, err: ErrSyntax},
		{text: `{`, err: ErrSyntax},
		{text: `{"a"}`, err: ErrSyntax},
		{text: `{"a":1,}`, err: ErrSyntax},
		{text: `{"a":1}}`, err: ErrSyntax},
		{text: `[}`, err: ErrSyntax},
		{text: "{\"a\":\"\xff\"}", err: ErrUTF8},
		{text: "{\"\xff\":1}", err: ErrUTF8},
	} {
		fields := []Field{{Name: "a"}, {Name: "b"}}
		err := ReadFields([]byte(c.text), fields)
		if !errors.Is(err, c.err) || err == nil && (string(fields[0].Raw) != c.a || string(fields[1].Raw) != c.b) {
			t.Errorf("%s: %v %s", c.text, err, fields)
		}
	}
}

// TestReadFieldsAllocates holds that keys cost no memory.
func TestReadFieldsAllocates(t *testing.T) {
	text := []byte(`{"a":"x","b":[{},{},{"c":1}]}`)
	if n := testing.AllocsPerRun(100, func() {
		fields := [...]Field{{Name: "a"}, {Name: "b"}}
		if err := ReadFields(text, fields[:]); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzReadFields holds it against encoding/json: what is accepted is JSON, and each value is what that reads, texts among them.
func FuzzReadFields(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":"\ud800x"}`, `{"\u0061":[1,{}]}`, `{"a":"\"\\é"} `, `{"c":1}`, `[`, `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fields := []Field{{Name: "a"}, {Name: "b"}}
		if ReadFields(text, fields) != nil {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		for _, field := range fields {
			v, there := want[field.Name]
			if there != (field.Raw != nil) {
				t.Fatalf("%s: %v", field.Name, there)
			}
			var s *string
			isText := there && json.Unmarshal(v, &s) == nil && s != nil
			if got, ok := Text(field.Raw); ok != isText || ok && got != *s {
				t.Fatalf("%s: %q %v, want %s", field.Name, got, ok, v)
			}
		}
	})
}
