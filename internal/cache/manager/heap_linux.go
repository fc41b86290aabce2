package manager

// HeapGrowth is by how much, in percent, a Manager's heap may grow before it is collected, as debug.SetGCPercent takes it: to 4 MiB, with which the runtime begins. What is kept
// of each block is not in it (see tables), so that it is two MiB or three whatever the pool's size. With 25, which is 1 MiB, 100,000 pages take 14 bytes less each while others take
// their place, and 3 at rest; but collections, which have one of two processors for a millisecond, then make publishing pages of 16 KiB a tenth slower.
const HeapGrowth = 100
