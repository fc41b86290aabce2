package judge

import (
	"math"
	"slices"

	"github.com/perigee-llm/perigee/internal/splitmix"
)

// Percentile is the nearest-rank q-quantile of rising values: the least that at least a share of q does not exceed. NaN of none.
func Percentile(rising []float64, q float64) float64 {
	if len(rising) == 0 {
		return math.NaN()
	}
	// The rank is rounded up from what is a whole number but for the last bit: 0.95 of 100 is the 95th.
	rank := int(math.Ceil(q*float64(len(rising)) - 1e-9))
	return rising[min(max(rank, 1), len(rising))-1]
}

// resamples has the percentiles of each arm, of the samples themselves and of each time that clusters were drawn again.
type resamples struct {
	own   [][3]float64
	drawn [][][3]float64
}

// bootstrap draws as many clusters as there are, with replacement, as often as the plan says. All arms' samples of a cluster are drawn together.
func (p *Plan) bootstrap(t table, metric string, seed uint64) resamples {
	values := make([][][]float64, len(t.clusters))
	for i, c := range t.clusters {
		values[i] = make([][]float64, len(p.Arms))
		for a, of := range c {
			for _, s := range of {
				values[i][a] = append(values[i][a], s.value(metric))
			}
		}
	}
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	out := resamples{own: p.percentiles(values, order)}
	if len(values) < p.Least.Clusters {
		return out // nobody will ask for an interval
	}
	for range p.Resamples {
		for i := range order {
			var n uint64
			seed, n = splitmix.Step(seed)
			order[i] = int(n % uint64(len(values))) // a bias of some 2^-50
		}
		out.drawn = append(out.drawn, p.percentiles(values, order))
	}
	return out
}

func (p *Plan) percentiles(values [][][]float64, order []int) [][3]float64 {
	out := make([][3]float64, len(p.Arms))
	var all []float64
	for a := range p.Arms {
		all = all[:0]
		for _, i := range order {
			all = append(all, values[i][a]...)
		}
		slices.Sort(all)
		for i, x := range quantiles {
			out[a][i] = Percentile(all, x.q)
		}
	}
	return out
}

// interval is of a figure that f makes of the arms' percentiles.
func (r resamples) interval(confidence float64, f func([][3]float64) float64) Interval {
	all := make([]float64, 0, len(r.drawn))
	for _, v := range r.drawn {
		all = append(all, f(v))
	}
	slices.Sort(all)
	return Interval{f(r.own), Percentile(all, (1-confidence)/2), Percentile(all, (1+confidence)/2)}
}
