// Package demo shows the main job on one machine: simulated engines and a real gateway on loopback, and a slice of a real
// trace replayed through them over HTTP, once under a baseline policy and once under the one to be shown.
//
// It promises that both runs get the same requests at the same times, on fresh engines and a fresh gateway, and differ in
// the policy alone; that the gateway is started from the YAML text that [Report] holds, as anybody could write it; that
// every figure was measured in the run it stands for, or is told as unknown; and that [Run] returns when every engine, the
// gateway and every goroutine have ended.
package demo
