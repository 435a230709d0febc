"""The judge: it reads, builds, checks, times and profiles candidates in processes of their own."""
