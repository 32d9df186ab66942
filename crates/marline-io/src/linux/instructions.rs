//! Classic BPF instructions of the receive filters.

use super::filter::Instruction;

pub(super) const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
pub(super) const LOAD_HALF_INDEXED: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
pub(super) const LOAD_HEADER_LEN: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
pub(super) const JUMP_IF_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
pub(super) const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
pub(super) const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
pub(super) const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
pub(super) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
pub(super) const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub(super) const LOAD_X: u16 = (libc::BPF_LDX | libc::BPF_MEM) as u16;
pub(super) const STORE: u16 = libc::BPF_ST as u16;
pub(super) const A_TO_X: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
pub(super) const XOR: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X) as u16;
pub(super) const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
pub(super) const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;

/// Return value that drops the packet.
pub(super) const DROP: u32 = 0;

/// Creates an instruction that does not branch.
pub(super) const fn op(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}
