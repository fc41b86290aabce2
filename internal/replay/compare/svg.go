package compare

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// The plot's measures, in pixels.
const (
	plotWidth  = 960
	panelTop   = 30  // from a panel's upper edge to its axes: the title
	panelInner = 300 // height of the axes
	panelFull  = panelTop + panelInner + 60
	marginL    = 64
	marginR    = 24
	legendLine = 20
	axesWidth  = plotWidth - marginL - marginR
	maxPoints  = 240 // of a line over time: more is noise at this width
)

// palette has the colours of Okabe and Ito, which people who see colours differently can tell apart, without their yellow, which is
// too light for a line. From the eighth contender on they come again, dashed.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"}

// SVG writes the report as a picture: the distribution of TTFT, and the queue over time, a line a contender.
func (r *Report) SVG() string {
	p := &plot{}
	top := 20 + legendLine*((len(r.Runs)+2)/3)
	height := top + 2*panelFull
	p.f(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`, plotWidth, height, plotWidth, height)
	p.f(`<title>%s</title>`, html.EscapeString("perigee replay: "+r.Conditions.Trace))
	p.f(`<rect width="%d" height="%d" fill="white"/>`, plotWidth, height)
	r.legend(p)
	r.ttftPanel(p, top)
	r.queuePanel(p, top+panelFull)
	p.f(`</svg>`)
	return p.b.String()
}

type plot struct{ b strings.Builder }

func (p *plot) f(format string, args ...any) {
	fmt.Fprintf(&p.b, format, args...)
	p.b.WriteByte('\n')
}

func style(i int) string {
	s := `stroke="` + palette[i%len(palette)] + `" stroke-width="2" fill="none"`
	if i >= len(palette) {
		s += ` stroke-dasharray="7 4"`
	}
	return s
}

func (r *Report) legend(p *plot) {
	for i := range r.Runs {
		x, y := marginL+(i%3)*(axesWidth/3), 20+legendLine*(i/3)
		p.f(`<line x1="%d" y1="%d" x2="%d" y2="%d" %s/>`, x, y-4, x+26, y-4, style(i))
		p.f(`<text x="%d" y="%d">%s</text>`, x+33, y, html.EscapeString(r.Runs[i].Name))
	}
}

// panel is a pair of axes; x and y map values to pixels.
type panel struct {
	p    *plot
	top  int // of the axes
	x, y func(float64) float64
}

func newPanel(p *plot, top int, title string) *panel {
	p.f(`<text x="%d" y="%d" font-weight="bold">%s</text>`, marginL, top+16, html.EscapeString(title))
	top += panelTop
	p.f(`<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#888"/>`, marginL, top, axesWidth, panelInner)
	return &panel{p: p, top: top}
}

func (a *panel) tickX(v float64, label string) {
	a.p.f(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#ddd"/>`, a.x(v), a.top, a.x(v), a.top+panelInner)
	a.p.f(`<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, a.x(v), a.top+panelInner+18, label)
}

func (a *panel) tickY(v float64, label string) {
	a.p.f(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`, marginL, a.y(v), marginL+axesWidth, a.y(v))
	a.p.f(`<text x="%d" y="%.1f" text-anchor="end">%s</text>`, marginL-6, a.y(v)+4, label)
}

func (a *panel) labelX(text string) {
	a.p.f(`<text x="%d" y="%d" text-anchor="middle">%s</text>`, marginL+axesWidth/2, a.top+panelInner+38, html.EscapeString(text))
}

// line draws through the points, which are pixels.
func (a *panel) line(i int, points []float64) {
	if len(points) == 0 {
		return
	}
	var b strings.Builder
	for k := 0; k < len(points); k += 2 {
		fmt.Fprintf(&b, "%.1f,%.1f ", points[k], points[k+1])
	}
	a.p.f(`<polyline points="%s" %s/>`, strings.TrimSpace(b.String()), style(i))
}

// linear maps [lo, hi] to pixels from a to b.
func linear(lo, hi, a, b float64) func(float64) float64 {
	return func(v float64) float64 { return a + (v-lo)/(hi-lo)*(b-a) }
}

// ttftPanel draws, for each TTFT on a logarithmic axis, the share of requests that had their first token by then. The
// axis begins where the fastest hundredth of some contender ends.
func (r *Report) ttftPanel(p *plot, top int) {
	a := newPanel(p, top, "Share of requests with their first token by then (TTFT, logarithmic)")
	lo, hi := math.Inf(1), 0.0
	for i := range r.Runs {
		h := &r.Runs[i].result.TTFT
		if d, ok := h.Quantile(0.01); ok {
			lo, hi = min(lo, d.Seconds()), max(hi, h.Max().Seconds())
		}
	}
	if hi == 0 {
		lo, hi = 0.1, 10 // nobody got a token
	}
	lo = max(lo, 1e-4, hi/1e5)
	left, right := math.Log10(lo)-0.02, math.Log10(max(hi, lo*1.5))+0.02
	scale := linear(left, right, marginL, marginL+axesWidth)
	a.x = func(v float64) float64 { return scale(math.Log10(v)) }
	a.y = linear(0, 1, float64(a.top+panelInner), float64(a.top))
	for e := math.Floor(left); e <= right; e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); math.Log10(v) >= left && math.Log10(v) <= right {
				a.tickX(v, strconv.FormatFloat(v, 'g', 3, 64))
			}
		}
	}
	for _, q := range []float64{0, 0.25, 0.5, 0.75, 0.9, 1} {
		a.tickY(q, strconv.FormatFloat(100*q, 'f', 0, 64)+" %")
	}
	a.labelX("seconds from arrival to the first token")
	for i := range r.Runs {
		h := &r.Runs[i].result.TTFT
		var points []float64
		for k := range 401 {
			q := max(float64(k)/400, 1e-9)
			if d, ok := h.Quantile(q); ok {
				points = append(points, a.x(max(d.Seconds(), lo)), a.y(q))
			}
		}
		a.line(i, points)
	}
}

// queuePanel draws the requests that wait in engines, all together, over the trace's time.
func (r *Report) queuePanel(p *plot, top int) {
	a := newPanel(p, top, "Requests waiting in the engines' queues, all engines together")
	span, most := 0.0, 0.0
	lines := make([][]float64, len(r.Runs)) // time and value in turns
	for i := range r.Runs {
		lines[i] = thin(&r.Runs[i])
		span = max(span, r.Runs[i].SpanSeconds)
		for k := 1; k < len(lines[i]); k += 2 {
			most = max(most, lines[i][k])
		}
	}
	span, most = max(span, 1e-3), max(most, 1)
	stepY := niceStep(most / 5)
	a.x = linear(0, span, marginL, marginL+axesWidth)
	a.y = linear(0, stepY*math.Ceil(most/stepY), float64(a.top+panelInner), float64(a.top))
	for v := 0.0; v < most+stepY; v += stepY {
		a.tickY(v, strconv.FormatFloat(v, 'g', 4, 64))
	}
	stepX := niceStep(span / 8)
	for k := 0; float64(k)*stepX <= span; k++ {
		a.tickX(float64(k)*stepX, strconv.FormatFloat(float64(k)*stepX, 'g', 6, 64))
	}
	a.labelX("seconds of the trace")
	for i, l := range lines {
		points := make([]float64, len(l))
		for k := 0; k < len(l); k += 2 {
			points[k], points[k+1] = a.x(l[k]), a.y(l[k+1])
		}
		a.line(i, points)
	}
}

// thin returns the queue over time as means of at most maxPoints parts: the middle of each, and the mean, in turns.
func thin(r *Row) []float64 {
	slots, width := r.result.Queue.Slots()
	per := (len(slots) + maxPoints - 1) / maxPoints
	var out []float64
	for i := 0; i < len(slots); i += per {
		part := slots[i:min(i+per, len(slots))]
		sum := 0.0
		for _, v := range part {
			sum += v
		}
		middle := (float64(i) + float64(len(part))/2) * width.Seconds()
		out = append(out, min(middle, r.SpanSeconds), sum/float64(len(part)))
	}
	return out
}

// niceStep returns the least of 1, 2, 5 · 10^n that is at least v.
func niceStep(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*unit >= v {
			return m * unit
		}
	}
	return 10 * unit
}
