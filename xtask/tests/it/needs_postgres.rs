use std::process::{Command, Output, Stdio};

use crate::{said, variable};

fn psql(url: &str, query: &str) -> Output {
    Command::new("psql")
        .args([
            "-X",
            "-w",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            query,
            url,
        ])
        .env_remove("PGPASSWORD")
        .stdin(Stdio::null())
        .output()
        .expect("psql is installed")
}

#[test]
#[ignore = "needs postgres"]
fn answers_queries_and_keeps_its_promises_about_durability() {
    let url = variable("DATABASE_URL");
    let query = "SELECT current_user, current_setting('fsync'), current_setting('synchronous_commit'), \
                 current_setting('max_connections'), \
                 (SELECT count(*) > 0 FROM pg_stat_statements)";
    let output = psql(&url, query);
    assert!(output.status.success(), "{}", said(&output));
    let row = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert_eq!(row, "tidegate|on|on|200|t");
}

#[test]
#[ignore = "needs postgres"]
fn asks_the_password_role_for_its_password() {
    let url = variable("DATABASE_PASSWORD_URL");
    let right = psql(&url, "SELECT current_user");
    assert!(right.status.success(), "{}", said(&right));
    assert_eq!(
        String::from_utf8_lossy(&right.stdout).trim(),
        "tidegate_password"
    );

    let (scheme, rest) = url.split_once("://").expect("the address is a URL");
    let (login, place) = rest.split_once('@').expect("the address names a role");
    let role = login.split(':').next().unwrap_or(login);
    let wrong = psql(&format!("{scheme}://{role}:wrong@{place}"), "SELECT 1");
    assert!(!wrong.status.success(), "a wrong password was accepted");
    assert!(
        said(&wrong).contains("password authentication failed"),
        "{}",
        said(&wrong)
    );
    let none = psql(&format!("{scheme}://{role}@{place}"), "SELECT 1");
    assert!(!none.status.success(), "no password was accepted");
}
