//go:build !race

#include "textflag.h"

// A pass in the terms of XXH3's specification, with its eight accumulators in Y1 and Y2.
//
//	R9   secret, R8 where a stripe's part of it begins
//	SI   source, DI destination
//	R10  bytes, CX stripes left before the last, DX those of a block

DATA prime<>+0(SB)/8, $0x9e3779b1
DATA prime<>+8(SB)/8, $0x9e3779b1
DATA prime<>+16(SB)/8, $0x9e3779b1
DATA prime<>+24(SB)/8, $0x9e3779b1
GLOBL prime<>(SB), RODATA|NOPTR, $32

// ADD stores 64 bytes by STORE and adds them.
#define ADD(STORE) \
	VMOVDQU  (SI), Y3       \
	VMOVDQU  32(SI), Y4     \
	VPXOR    (R8), Y3, Y5   \
	VPXOR    32(R8), Y4, Y6 \
	STORE    Y3, (DI)       \
	STORE    Y4, 32(DI)     \
	VPSHUFD  $0x31, Y5, Y7  \
	VPSHUFD  $0x31, Y6, Y8  \
	VPMULUDQ Y5, Y7, Y5     \
	VPMULUDQ Y6, Y8, Y6     \
	VPSHUFD  $0x4e, Y3, Y3  \
	VPSHUFD  $0x4e, Y4, Y4  \
	VPADDQ   Y3, Y1, Y1     \
	VPADDQ   Y4, Y2, Y2     \
	VPADDQ   Y5, Y1, Y1     \
	VPADDQ   Y6, Y2, Y2

// STRIPE does it and goes on. What is ahead is asked for: the processor's own foresight ends with a page of 4 KiB.
#define STRIPE(STORE) \
	PREFETCHT0 512(SI) \
	ADD(STORE)         \
	ADDQ $64, SI       \
	ADDQ $64, DI       \
	ADDQ $8, R8

// MIX scrambles the accumulators behind a block.
#define MIX \
	VPSRLQ   $47, Y1, Y3     \
	VPSRLQ   $47, Y2, Y4     \
	VPXOR    Y3, Y1, Y1      \
	VPXOR    Y4, Y2, Y2      \
	VPXOR    128(R9), Y1, Y1 \
	VPXOR    160(R9), Y2, Y2 \
	VPSHUFD  $0x31, Y1, Y3   \
	VPSHUFD  $0x31, Y2, Y4   \
	VPMULUDQ Y0, Y1, Y1      \
	VPMULUDQ Y0, Y2, Y2      \
	VPMULUDQ Y0, Y3, Y3      \
	VPMULUDQ Y0, Y4, Y4      \
	VPSLLQ   $32, Y3, Y3     \
	VPSLLQ   $32, Y4, Y4     \
	VPADDQ   Y3, Y1, Y1      \
	VPADDQ   Y4, Y2, Y2

// PASS goes stripe by stripe as far as bytes are left behind one, and then takes the last 64 bytes, by plain stores if they are not whole stripes: they begin anywhere.
#define PASS(STORE) \
	MOVQ    sums+0(FP), AX    \
	MOVQ    dst+8(FP), DI     \
	MOVQ    src+16(FP), SI    \
	MOVQ    bytes+24(FP), R10 \
	MOVQ    secret+32(FP), R9 \
	LEAQ    -1(R10), CX       \
	SHRQ    $6, CX            \
	VMOVDQU (AX), Y1          \
	VMOVDQU 32(AX), Y2        \
	VMOVDQU prime<>(SB), Y0   \
block: \
	MOVQ R9, R8   \
	CMPQ CX, $16  \
	JLT  rest     \
	MOVQ $16, DX  \
	SUBQ $16, CX  \
full: \
	STRIPE(STORE) \
	DECQ DX       \
	JNZ  full     \
	MIX           \
	JMP  block    \
rest: \
	TESTQ CX, CX  \
	JZ    last    \
one: \
	STRIPE(STORE) \
	DECQ CX       \
	JNZ  one      \
last: \
	LEAQ 121(R9), R8 \
	ANDQ $63, R10    \
	JNZ  odd         \
	ADD(STORE)       \
	JMP  done        \
odd: \
	SUBQ $64, R10 \
	ADDQ R10, SI  \
	ADDQ R10, DI  \
	ADD(VMOVDQU)  \
done: \
	VMOVDQU Y1, (AX)   \
	VMOVDQU Y2, 32(AX) \
	VZEROUPPER         \
	RET

// BLOCKS is so many whole blocks, behind which others follow.
#define BLOCKS(STORE) \
	MOVQ    sums+0(FP), AX    \
	MOVQ    dst+8(FP), DI     \
	MOVQ    src+16(FP), SI    \
	MOVQ    blocks+24(FP), CX \
	MOVQ    secret+32(FP), R9 \
	VMOVDQU (AX), Y1          \
	VMOVDQU 32(AX), Y2        \
	VMOVDQU prime<>(SB), Y0   \
block: \
	MOVQ R9, R8  \
	MOVQ $16, DX \
full: \
	STRIPE(STORE) \
	DECQ DX       \
	JNZ  full     \
	MIX           \
	DECQ CX       \
	JNZ  block    \
	VMOVDQU Y1, (AX)   \
	VMOVDQU Y2, 32(AX) \
	VZEROUPPER         \
	RET

// func passThrough(sums *[8]uint64, dst, src *byte, bytes int, secret *byte)
TEXT ·passThrough(SB), NOSPLIT, $0-40
	PASS(VMOVDQU)

// func passPast(sums *[8]uint64, dst, src *byte, bytes int, secret *byte)
TEXT ·passPast(SB), NOSPLIT, $0-40
	PASS(VMOVNTDQ)

// func blocksThrough(sums *[8]uint64, dst, src *byte, blocks int, secret *byte)
TEXT ·blocksThrough(SB), NOSPLIT, $0-40
	BLOCKS(VMOVDQU)

// func blocksPast(sums *[8]uint64, dst, src *byte, blocks int, secret *byte)
TEXT ·blocksPast(SB), NOSPLIT, $0-40
	BLOCKS(VMOVNTDQ)

// func Fence()
TEXT ·Fence(SB), NOSPLIT, $0-0
	SFENCE
	RET
