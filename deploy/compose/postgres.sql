-- The account that the image makes by itself is an administrator; whoever writes to the log could use it.
\getenv password PAYMENTS_PASSWORD
CREATE ROLE bed LOGIN PASSWORD :'password';
GRANT USAGE, CREATE ON SCHEMA public TO bed;
