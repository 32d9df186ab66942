//! Marline's lab with your own policy: `mylab run`, `mylab sweep`.

fn main() -> std::process::ExitCode {
    let mut registry = marline_cli::registry();
    outside_policy::register(&mut registry).expect("the name is free");
    marline_lab_cli::main_with(registry)
}
