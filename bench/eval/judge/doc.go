// Package judge decides what a paired run has shown: whether each service level and each regression budget that was declared before it holds, does not hold, or is
// unknown. It promises
//
//   - nothing is judged that the plan did not declare, and a plan that could not be judged (too few samples for its percentile, say) is refused before it is run;
//   - a request that failed is the slowest of all, and never left out;
//   - a verdict is about the interval, not the point: too few samples, or an interval on both sides of the bound, is unknown, never a pass;
//   - the same samples and the same plan give the same report.
//
// Percentiles are nearest-rank. Intervals are percentile intervals of a bootstrap over clusters (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapters 8
// and 13): a cluster is what was run side by side, with the samples of all arms, so that pairs stay together and requests of one burst, which wait for each
// other, are not taken for independent.
//
// Everything is a value; nothing is safe to change while a call reads it.
package judge
