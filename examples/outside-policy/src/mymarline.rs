//! Marline's program with your own policy: `mymarline client`, `mymarline policies`.

fn main() -> std::process::ExitCode {
    let mut registry = marline_cli::registry();
    outside_policy::register(&mut registry).expect("the name is free");
    marline_cli::main_with(registry)
}
