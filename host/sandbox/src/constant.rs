//! Evaluates constant expressions of modules, as the engine does at instantiation.

use wasm_encoder::{Ieee32, Ieee64, Instruction};
use wasmparser::{ConstExpr, Global, Operator};

/// Value of a constant expression. Floats are their bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Constant {
    I32(i32),
    I64(i64),
    F32(u32),
    F64(u64),
    V128(i128),
}

impl Constant {
    /// Evaluates an expression. `globals` are the values of the module's globals; `None` if a global is mutable or its
    /// value is not known. Returns `None` if the value is not a number or not known.
    pub(crate) fn evaluate(expression: &ConstExpr<'_>, globals: &[Option<Constant>]) -> Option<Constant> {
        let mut stack = Vec::new();
        let mut operators = expression.get_operators_reader().into_iter();
        loop {
            let value = match operators.next()?.ok()? {
                Operator::I32Const { value } => Constant::I32(value),
                Operator::I64Const { value } => Constant::I64(value),
                Operator::F32Const { value } => Constant::F32(value.bits()),
                Operator::F64Const { value } => Constant::F64(value.bits()),
                Operator::V128Const { value } => Constant::V128(value.i128()),
                Operator::GlobalGet { global_index } => (*globals.get(global_index as usize)?)?,
                Operator::I32Add => two_i32(&mut stack, i32::wrapping_add)?,
                Operator::I32Sub => two_i32(&mut stack, i32::wrapping_sub)?,
                Operator::I32Mul => two_i32(&mut stack, i32::wrapping_mul)?,
                Operator::I64Add => two_i64(&mut stack, i64::wrapping_add)?,
                Operator::I64Sub => two_i64(&mut stack, i64::wrapping_sub)?,
                Operator::I64Mul => two_i64(&mut stack, i64::wrapping_mul)?,
                Operator::End => break,
                _ => return None,
            };
            stack.push(value);
        }
        match (&stack[..], operators.next()) {
            ([value], None) => Some(*value),
            _ => None,
        }
    }

    /// Evaluates an offset in a 32-bit memory or table.
    pub(crate) fn offset(expression: &ConstExpr<'_>, globals: &[Option<Constant>]) -> Option<u32> {
        match Constant::evaluate(expression, globals)? {
            Constant::I32(value) => Some(value as u32),
            _ => None,
        }
    }

    /// Returns the instruction that pushes the value.
    pub(crate) fn instruction(self) -> Instruction<'static> {
        match self {
            Constant::I32(value) => Instruction::I32Const(value),
            Constant::I64(value) => Instruction::I64Const(value),
            Constant::F32(bits) => Instruction::F32Const(Ieee32::new(bits)),
            Constant::F64(bits) => Instruction::F64Const(Ieee64::new(bits)),
            Constant::V128(value) => Instruction::V128Const(value),
        }
    }

    /// Returns the initial value of a module's next global, and appends it to `globals`.
    pub(crate) fn next_global(global: &Global<'_>, globals: &mut Vec<Option<Constant>>) -> Option<Constant> {
        let value = Constant::evaluate(&global.init_expr, globals);
        globals.push(value.filter(|_| !global.ty.mutable));
        value
    }
}

fn two_i32(stack: &mut Vec<Constant>, operation: fn(i32, i32) -> i32) -> Option<Constant> {
    let (Constant::I32(second), Constant::I32(first)) = (stack.pop()?, stack.pop()?) else { return None };
    Some(Constant::I32(operation(first, second)))
}

fn two_i64(stack: &mut Vec<Constant>, operation: fn(i64, i64) -> i64) -> Option<Constant> {
    let (Constant::I64(second), Constant::I64(first)) = (stack.pop()?, stack.pop()?) else { return None };
    Some(Constant::I64(operation(first, second)))
}
