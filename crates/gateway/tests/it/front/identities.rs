//! Origin identities: with whose credential the gateway signs.

use super::{
    harness::{S3Client, start_with, tenants},
    recording_origin::RecordingOrigin,
};

const ROLE: &str = "role = \"arn:aws:iam::123456789012:role/reader\"\n";
const ANSWER: &str = "<AssumeRoleResponse><AssumeRoleResult><Credentials>\
    <AccessKeyId>ASIATEMPORARY</AccessKeyId><SecretAccessKey>temporary</SecretAccessKey>\
    <SessionToken>token-of-the-role</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>\
    </Credentials></AssumeRoleResult></AssumeRoleResponse>";

#[tokio::test(flavor = "multi_thread")]
async fn a_role_is_assumed_once_and_its_session_signs() {
    let directory = tempfile::tempdir().unwrap();
    let origin = RecordingOrigin::start(200, &[]).await;
    let tokens = RecordingOrigin::with_body(200, &[], ANSWER).await;
    let mut tenants = tenants(directory.path());
    let identity = tenants[0].origin.as_mut().unwrap();
    identity.extend(ROLE.parse::<toml::Table>().unwrap());
    let lines = format!("capacity = \"0B\"\nsts_endpoint = \"{}\"\n", tokens.endpoint());
    let gateway = start_with(directory.path(), &origin.endpoint(), &lines, &tenants).await;
    let (a, b) = (S3Client::new(gateway.address, "a"), S3Client::new(gateway.address, "b"));
    for _ in 0..3 {
        assert_eq!(a.get("/data/k", &[]).await.status, 200);
    }
    let received = origin.last();
    let authorization = received.headers["authorization"].to_str().unwrap();
    assert!(authorization.contains("Credential=ASIATEMPORARY/"), "{authorization}");
    assert_eq!(received.headers["x-amz-security-token"], "token-of-the-role");
    assert_eq!(tokens.count(), 1, "the session is kept");
    let asked = tokens.last();
    let form = String::from_utf8(asked.body.unwrap().to_vec()).unwrap();
    assert!(form.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Freader"), "{form}");
    assert!(form.contains("RoleSessionName=forebay-a"), "{form}");
    assert!(asked.headers["authorization"].to_str().unwrap().contains("/us-east-1/sts/"));
    assert_eq!(b.get("/data/k", &[]).await.status, 200);
    assert!(!origin.last().headers.contains_key("x-amz-security-token"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_refused_is_that_tenants_403_alone() {
    let directory = tempfile::tempdir().unwrap();
    let origin = RecordingOrigin::start(200, &[]).await;
    let refusal = "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>";
    let tokens = RecordingOrigin::with_body(403, &[], refusal).await;
    let mut tenants = tenants(directory.path());
    let identity = tenants[0].origin.as_mut().unwrap();
    identity.extend(ROLE.parse::<toml::Table>().unwrap());
    let lines = format!("capacity = \"0B\"\nsts_endpoint = \"{}\"\n", tokens.endpoint());
    let gateway = start_with(directory.path(), &origin.endpoint(), &lines, &tenants).await;
    let (a, b) = (S3Client::new(gateway.address, "a"), S3Client::new(gateway.address, "b"));
    for _ in 0..5 {
        let refused = a.get("/data/k", &[]).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "AccessDenied"));
    }
    assert_eq!(tokens.count(), 1, "a refusal is not repeated at once");
    assert_eq!(origin.count(), 0);
    assert_eq!(b.get("/data/k", &[]).await.status, 200);
}
