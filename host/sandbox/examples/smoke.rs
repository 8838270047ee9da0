use sandbar_core::Limits;
use sandbar_sandbox::*;
use std::time::Instant;
struct S {
    body: Vec<u8>,
    out: usize,
}
impl Services for S {
    fn input(&self) -> Input<'_> {
        Input { bytes: &self.body, file: None }
    }
    fn emit(&mut self, _h: &[u8], b: &[&[u8]]) -> Result<(), Refusal> {
        self.out += b.iter().map(|b| b.len()).sum::<usize>();
        Ok(())
    }
    fn log(&mut self, _l: Level, m: &str) {
        println!("log {m}");
    }
}
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let t = Instant::now();
    let (code, shape) = compile(&bytes).unwrap();
    println!("compile {:?} {} {:?}", t.elapsed(), code.len(), shape);
    let limits = Limits::default();
    let t = Instant::now();
    let engine = Engine::new(&limits).unwrap();
    println!("engine {:?}", t.elapsed());
    let t = Instant::now();
    let program = unsafe { engine.load(&code, shape.image_end) }.unwrap();
    println!("load {:?}", t.elapsed());
    let mut i = program.instantiate(Box::new(NoServices), &limits, 1).unwrap();
    let f = i.describe().unwrap();
    for f in &f {
        println!("{} {:?} {}", f.name, f.kind, f.about);
    }
    drop(i);
    let add = f.iter().position(|f| f.name == "add").unwrap() as u32;
    let n = 1024usize;
    let a: Vec<u8> = (0..n as i64).flat_map(|x| x.to_le_bytes()).collect();
    let mut body = a.clone();
    body.extend(&a);
    // header by hand
    let mut h = b"SBB1".to_vec();
    let schema: Vec<u8> = [&[2u8, 0, 1, 0, b'a', 1, 5, 1, 0, b'b', 1, 5][..]].concat();
    h.extend((schema.len() as u32).to_le_bytes());
    h.extend((n as u64).to_le_bytes());
    h.extend(2u32.to_le_bytes());
    h.extend(4u32.to_le_bytes());
    h.extend((2 * 8 * n as u64).to_le_bytes());
    h.extend(&schema);
    h.resize(h.len().next_multiple_of(8), 0);
    for v in [n as u64, 0, n as u64, 0, 0, 0, 0, 8 * n as u64, 8 * n as u64, 0, 8 * n as u64, 8 * n as u64] {
        h.extend(v.to_le_bytes());
    }
    let mut warm = program.instantiate(Box::new(S { body, out: 0 }), &limits, 1).unwrap();
    warm.open(add, "{}", 1).unwrap();
    warm.process(&h).unwrap();
    for _ in 0..3 {
        let t = Instant::now();
        for _ in 0..20000 {
            warm.process(&h).unwrap();
        }
        println!("warm 1024 rows: {:.2} us", t.elapsed().as_secs_f64() / 20000.0 * 1e6);
    }
    for _ in 0..3 {
        let t = Instant::now();
        for _ in 0..20000 {
            drop(program.instantiate(Box::new(NoServices), &limits, 1).unwrap());
        }
        println!("instantiate: {:.2} us", t.elapsed().as_secs_f64() / 20000.0 * 1e6);
        let t = Instant::now();
        for _ in 0..20000 {
            let mut i = program.instantiate(Box::new(NoServices), &limits, 1).unwrap();
            i.open(add, "{}", 1).unwrap();
        }
        println!("instantiate+open: {:.2} us", t.elapsed().as_secs_f64() / 20000.0 * 1e6);
    }
}
