//go:build !race

#include "textflag.h"

// func look(b *bucket, tag, ids uint32) (slots, word uint32)
//
// Each entry without its number's bits is compared with the tag, four at a time; packing keeps their order, so that each has a bit in the end.
TEXT ·look(SB), NOSPLIT, $0-24
	MOVQ b+0(FP), AX
	MOVL tag+8(FP), X0
	MOVL ids+12(FP), X1
	PCMPEQL X6, X6
	PSHUFD $0, X0, X0
	PSHUFD $0, X1, X1
	PXOR X6, X1
	MOVOU (AX), X2
	MOVOU 16(AX), X3
	MOVOU 32(AX), X4
	MOVOU 48(AX), X5
	MOVL X2, CX
	PAND X1, X2
	PAND X1, X3
	PAND X1, X4
	PAND X1, X5
	PCMPEQL X0, X2
	PCMPEQL X0, X3
	PCMPEQL X0, X4
	PCMPEQL X0, X5
	PACKSSLW X3, X2
	PACKSSLW X5, X4
	PACKSSWB X4, X2
	PMOVMSKB X2, DX
	ANDL $0xfffe, DX
	MOVL DX, slots+16(FP)
	MOVL CX, word+20(FP)
	RET
