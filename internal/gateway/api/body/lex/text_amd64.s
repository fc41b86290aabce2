//go:build !race

#include "textflag.h"

// AMONG sets those bytes of X to all ones where V has a special one: a quote, a backslash, and what is less than a space as a signed number, which is a control
// character or not ASCII. V and T are lost.
#define AMONG(V, X, T) \
	MOVO    X2, X    \
	PCMPGTB V, X     \
	MOVO    V, T     \
	PCMPEQB X0, V    \
	PCMPEQB X1, T    \
	POR     V, X     \
	POR     T, X

// EACH has one byte in each of sixteen.
#define EACH(BYTES, X) \
	MOVQ       $BYTES, AX \
	MOVQ       AX, X      \
	PUNPCKLQDQ X, X

// What makes an escape of two bytes with the backslash before it: ", /, \, b, f, n, r, t.
DATA simple<>+0x22(SB)/1, $1
DATA simple<>+0x2f(SB)/1, $1
DATA simple<>+0x5c(SB)/1, $1
DATA simple<>+0x62(SB)/1, $1
DATA simple<>+0x66(SB)/1, $1
DATA simple<>+0x6e(SB)/1, $1
DATA simple<>+0x72(SB)/1, $1
DATA simple<>+0x74(SB)/1, $1
GLOBL simple<>(SB), RODATA|NOPTR, $256

// func run(p *byte, n int) (end, escapes int)
//
//	SI  p
//	CX  the last place that sixty-four bytes and one more fit at
//	DX  where it is
//	DI  escapes
//	AX  a bit for each special one of the sixty-four at DX that was not passed
TEXT ·run(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	LEAQ simple<>(SB), R10
	XORQ DX, DX
	XORQ DI, DI
	SUBQ $65, CX
	JLT  end
	EACH(0x2222222222222222, X0)
	EACH(0x5c5c5c5c5c5c5c5c, X1)
	EACH(0x2020202020202020, X2)

block:
	MOVOU    (SI)(DX*1), X3
	MOVOU    16(SI)(DX*1), X6
	MOVOU    32(SI)(DX*1), X9
	MOVOU    48(SI)(DX*1), X12
	AMONG(X3, X4, X5)
	AMONG(X6, X7, X8)
	AMONG(X9, X10, X11)
	AMONG(X12, X13, X14)
	MOVO     X4, X3
	POR      X7, X3
	MOVO     X10, X6
	POR      X13, X6
	POR      X6, X3
	PMOVMSKB X3, AX
	TESTL    AX, AX
	JNE      specials

next:
	ADDQ $64, DX

more:
	CMPQ DX, CX
	JLE  block

end:
	MOVQ DX, end+16(FP)
	MOVQ DI, escapes+24(FP)
	RET

specials:
	PMOVMSKB X4, AX
	PMOVMSKB X7, BX
	PMOVMSKB X10, R8
	PMOVMSKB X13, R9
	SHLQ     $16, BX
	SHLQ     $32, R8
	SHLQ     $48, R9
	ORQ      BX, AX
	ORQ      R9, R8
	ORQ      R8, AX

special:
	BSFQ    AX, BX
	LEAQ    (DX)(BX*1), R8
	CMPB    (SI)(R8*1), $0x5c
	JNE     stop
	MOVBLZX 1(SI)(R8*1), R9
	CMPB    (R10)(R9*1), $0
	JEQ     stop
	INCQ    DI
	BTRQ    BX, AX
	INCQ    BX
	CMPQ    BX, $64
	JEQ     across
	BTRQ    BX, AX // what is escaped may be a quote or a backslash
	TESTQ   AX, AX
	JNE     special
	JMP     next

across: // the next sixty-four begin behind what is escaped
	ADDQ $65, DX
	JMP  more

stop:
	MOVQ R8, DX
	JMP  end
