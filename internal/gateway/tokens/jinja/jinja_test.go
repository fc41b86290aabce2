package jinja

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

func render(t *testing.T, source string, lim Limits, vars ...Var) (string, error) {
	t.Helper()
	p, err := Compile(source)
	if err != nil {
		return "", err
	}
	out, err := p.Render(nil, time.Time{}, lim, vars...)
	return string(out), err
}

// What a template does right is held to jinja2 by the golden suite of the package template. Here stands what jinja2 has no
// answer for: the limits.
func TestLimits(t *testing.T) {
	double := "{% set ns = namespace(x='0123456789') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
	nest := func(n string) string {
		return "{% set ns = namespace(x=[]) %}{% for i in range(" + n + ") %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
	}
	many := "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor %}"
	for name, source := range map[string]string{
		"recursion":                 "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"recursion through caller":  "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}",
		"nested loops":              many,
		"macros in loops":           "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
		"doubled text":              double,
		"repeated text":             "{{ 'x' * 2147483647 }}",
		"repeated text of text":     "{% set x = 'x' * 1000000 %}{{ x * 1000000 }}",
		"repeated list":             "{{ ([1] * 2147483647)|length }}",
		"huge count":                "{{ 'x' * 10 ** 30 }}",
		"padded text":               "{{ 'x'.ljust(2147483647) }}",
		"indented text":             "{{ 'x'|indent(2147483647) }}",
		"indented JSON":             "{{ [1]|tojson(indent=2147483647) }}",
		"replaced text":             "{% set x = 'x' * 1000000 %}{{ x.replace('x', x) }}",
		"joined text":               "{% set x = 'x' * 1000000 %}{{ x.join(x) }}",
		"power":                     "{{ 10 ** 100000 }}",
		"strip":                     "{% set x = 'x' * 1000000 %}{{ x.strip(x) }}",
		"dict of numbers":           "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = ns.x + [[i, i]] %}{% endfor %}",
		"big integers":              "{% set x = 10 ** 4000 %}{% for i in range(100000) %}{% set y = x ~ '' %}{% set y = x|tojson %}{% endfor %}",
		"output":                    "{% set x = 'x' * 1000000 %}{% for i in range(1000) %}{{ x }}{% endfor %}",
		"a list in itself, printed": nest("60") + "{{ ns.x }}",
		"a list in itself, dumped":  nest("60") + "{{ ns.x|tojson }}",
		"a list in itself, equal":   nest("60") + "{% set a = ns.x %}" + nest("60") + "{{ a == ns.x }}",
		"a list in itself, less":    nest("60") + "{% set a = ns.x %}" + nest("60") + "{{ a < ns.x }}",
		"a deep list, printed":      nest("5000") + "{{ ns.x }}",
		"searching":                 "{% set x = 'x' * 1000000 %}{% for i in range(100000) %}{{ x.find('y') }}{{ x.count('y') }}{% endfor %}",
		"counting":                  "{% set x = 'é' * 1000000 %}{% for i in range(100000) %}{% set y = x[99999] %}{% endfor %}",
		"unique":                    "{{ range(100000)|unique|list|length }}",
		"testing":                   "{% set x = 'x' * 1000000 %}{% for i in range(100000) %}{% set y = x is lower %}{% endfor %}",
		"length":                    "{% set x = 'x' * 1000000 %}{% for i in range(100000) %}{% set y = x|length %}{% endfor %}",
	} {
		start := time.Now()
		out, err := render(t, source, Limits{Steps: 400_000, Output: 2 << 20})
		if !errors.Is(err, ErrLimit) {
			t.Errorf("%s: got %d bytes, error %v; want ErrLimit", name, len(out), err)
		}
		if d := time.Since(start); d > 20*time.Second { // what is not paid for takes minutes; the limits allow well below a second
			t.Errorf("%s: took %v", name, d)
		}
	}
}

func TestNestedSourceIsRefused(t *testing.T) {
	deep := func(open, inner, end string) string {
		return strings.Repeat(open, 20_000) + inner + strings.Repeat(end, 20_000)
	}
	for name, source := range map[string]string{
		"parentheses": "{{ " + deep("(", "1", ")") + " }}",
		"lists":       "{{ " + deep("[", "", "]") + " }}",
		"dicts":       "{{ " + deep("{1:", "1", "}") + " }}",
		"not":         "{{ " + deep("not ", "1", "") + " }}",
		"minus":       "{{ " + deep("-", "1", "") + " }}",
		"sums":        "{{ 1" + deep("+1", "", "") + " }}",
		"subscripts":  "{{ x" + deep("[0]", "", "") + " }}",
		"filters":     "{{ x" + deep("|trim", "", "") + " }}",
		"conditions":  "{{ 1" + deep(" if 1 else 1", "", "") + " }}",
		"blocks":      deep("{% if 1 %}", "", "{% endif %}"),
		"size":        strings.Repeat(" ", MaxSource+1),
	} {
		if _, err := Compile(source); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", name, err)
		}
	}
	if _, err := Compile("{{ 1" + strings.Repeat(" if 1", 10_000) + " }}"); err == nil {
		t.Error("conditions to the left: no error")
	}
	if _, err := Compile("{{ 1" + strings.Repeat(" or 1", 10_000) + " }}"); err == nil {
		t.Error("a chain of or: no error")
	}
}

// TestDeepestTemplate nests as deep as the parser allows, in macros that nest as deep as a render allows. Were the stack
// to overflow, the process would end here.
func TestDeepestTemplate(t *testing.T) {
	row := strings.Repeat("[0:]", maxChain-4) + strings.Repeat("|list", maxChain-4) + strings.Repeat("*1", maxChain-4) + strings.Repeat("+1", maxChain-4)
	deepest := "f()"
	for range (maxNesting - 8) / 2 {
		deepest = "(" + deepest + row + ")"
	}
	_, err := render(t, "{% macro f() %}{{ "+deepest+" }}{% endmacro %}{{ f() }}", Limits{})
	if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "macros that call each other") {
		t.Errorf("got %v, want ErrLimit of the calls", err)
	}
}

func TestErrorsTellTheLineAndKeepTheOutput(t *testing.T) {
	p, err := Compile("a\nb\n{{ missing.x }}\n")
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.Render([]byte("kept"), time.Time{}, Limits{})
	var e *Error
	if !errors.As(err, &e) || e.Line != 3 || e.Class != ErrFailed || string(out) != "kept" {
		t.Errorf("got %q, %v; want ErrFailed of line 3 and the text as it was", out, err)
	}
	if _, err := Compile("\n{{ 1 | nofilter }}"); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "nofilter (template line 2)") {
		t.Errorf("got %v", err)
	}
}

func TestConcurrentRenders(t *testing.T) {
	p, err := Compile("{% set ns = namespace(n=0) %}{% set o = {'a': [n]} %}{% for i in range(50) %}{% set ns.n = ns.n + n %}{% endfor %}{{ ns.n }}{{ o }}")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 50 {
				want := itoa(50*n) + "{'a': [" + itoa(n) + "]}"
				out, err := p.Render(nil, time.Time{}, Limits{}, Var{"n", integer(int64(n))})
				if err != nil || string(out) != want {
					t.Errorf("got %q, %v; want %q", out, err, want)
					return
				}
			}
		}()
	}
	wg.Wait()
}

func TestParseJSON(t *testing.T) {
	for src, want := range map[string]string{
		`{"b":1,"a":2,"b":3}`:                            `{'b': 3, 'a': 2}`,
		`[1.0, 1e400, -0.0, 1E2, 100000000000000000000]`: `[1.0, inf, -0.0, 100.0, 100000000000000000000]`,
		` "\ud83c\udf89\u00e9\n\/" `:                     `'🎉é\n/'`,
		`[null,true,false,"",[],{}]`:                     `[None, True, False, '', [], {}]`,
	} {
		v, err := ParseJSON([]byte(src))
		if got := string(appendRepr(nil, v, 0)); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", src, got, err, want)
		}
	}
	for _, src := range []string{
		``, ` `, `{`, `[1,]`, `{"a":1,}`, `{"a"}`, `{a:1}`, `01`, `1.`, `.5`, `+1`, `1e`, `NaN`, `Infinity`, `-Infinity`, `nul`, `"\x"`, `"a`, "\"\n\"",
		`"\ud800"`, `"\udc00"`, `"\ud800\u0041"`, "\"\xff\"", `"\u12"`, `1 2`, `[1 2]`, strings.Repeat("9", 5000),
	} {
		if v, err := ParseJSON([]byte(src)); !errors.Is(err, ErrInput) {
			t.Errorf("%.20q: got %v, %v; want ErrInput", src, v, err)
		}
	}
	if _, err := ParseJSON([]byte(strings.Repeat("[", 100_000))); !errors.Is(err, ErrLimit) {
		t.Errorf("deep nesting: %v, want ErrLimit", err)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"{%- for m in messages -%}{{ m.role }}: {{ m['content'] | trim }}\n{%- endfor -%}", "{% macro f(a, b=1) %}{{ f(b) }}{% endmacro %}{{ f(1) }}",
		"{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}", "{{ [1,2,3][::-1]|tojson(indent=2) }}", "{% raw %}{{{% endraw %}", "{#- x -#}",
		"{{ 'a' if x is defined and y not in z else 'b' ~ 1.5e3 // 2 ** -1 }}", "{% call(x) f() %}{{ x }}{% endcall %}", "{% set x | upper %}a{% endset %}",
		"{{ '%5.2f' % 1 }}{{ '{}'.format(1) }}", "{{ {'a': (1,)}.items() | list | sort(attribute='0') }}", "{% for a, b in x if a %}{% break %}{% else %}{% endfor %}",
		`{{ "\x41\u00e9\101\N{DASH}" }}`, "{{ 0x1f + 0b1 + 0o7 + 1_000 }}", "{{ messages | map(attribute='a.b') | select('string') | join(',') | indent(2, true) }}",
	} {
		f.Add(s)
	}
	messages, err := ParseJSON([]byte(`[{"role":"user","content":"Hé\n"},{"role":"tool","content":[{"type":"text","text":"x"}],"n":1.5}]`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, source string) {
		p, err := Compile(source)
		if err == nil {
			_, err = p.Render(nil, time.Time{}, Limits{Steps: 20_000, Output: 1 << 16}, Var{"messages", messages})
		}
		if err != nil && strings.Contains(err.Error(), "the engine failed") {
			t.Fatal(err)
		}
	})
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,"x\n\u00e9",null,true]}`, `"\ud83c\udf89"`, `[1e400,-0,1E+2]`, `{"a":1,"a":2}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		v, err := ParseJSON([]byte(src))
		if err != nil {
			if !errors.Is(err, ErrInput) && !errors.Is(err, ErrLimit) || strings.Contains(err.Error(), "the engine failed") {
				t.Fatal(err)
			}
			return
		}
		// What was read is written as JSON that reads as the same value.
		c := &context{lim: Limits{}.defaults(), left: 1 << 40}
		again, err := ParseJSON([]byte(filterTojson(c, v, args{}).s))
		if err != nil && !strings.Contains(src, "e") && !strings.Contains(src, "E") { // 1e400 is written as Infinity
			t.Fatal(err)
		}
		if err == nil && !equal(c, v, again, 0) {
			t.Fatalf("%s reads as another value when written", src)
		}
	})
}
