#include "textflag.h"

// func streamLines(dst, src *byte, n int)
//
// n is a multiple of 64 and not 0, dst of 16. The prefetch is of lines that the copy needs soon, or of what lies behind it, which is never an error.
TEXT ·streamLines(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

line:
	PREFETCHT0 1024(SI)
	MOVOU      (SI), X0
	MOVOU      16(SI), X1
	MOVOU      32(SI), X2
	MOVOU      48(SI), X3
	MOVNTO     X0, (DI)
	MOVNTO     X1, 16(DI)
	MOVNTO     X2, 32(DI)
	MOVNTO     X3, 48(DI)
	ADDQ       $64, SI
	ADDQ       $64, DI
	SUBQ       $64, CX
	JNZ        line
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	SFENCE
	RET
