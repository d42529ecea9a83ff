//! Runs one command in a fresh box: `cargo run -p glasshouse-sandbox --example run -- HOME PROGRAM ARGS…`

use glasshouse_sandbox::{ExecSpec, Program, SandboxSpec, Sandboxes, Settings};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let home = args.next().ok_or("name a state directory")?;
    let house = Sandboxes::open(Settings { home: home.into() })?;
    let sandbox = house.create(SandboxSpec::default()).await?;
    let program = Program::Argv(args.collect());
    let output = sandbox.exec(ExecSpec { program, ..ExecSpec::default() }).await?.collect().await;
    sandbox.destroy().await?;
    eprintln!("{} after {} µs: {:?}", output.report.exit, output.report.wall_us, output.report);
    let text = [output.stdout.bytes, output.stderr.bytes].concat();
    std::io::Write::write_all(&mut std::io::stdout(), &text)?;
    Ok(())
}
